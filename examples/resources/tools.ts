import { type AuthInfo, McpServer, type McpServerFactory, type ServerContext } from '@modelcontextprotocol/server'
import { z } from 'zod'
import { idempotency, KEY_DESCRIPTION } from '../../src/adapters/mcp.ts'
import type { Contract, Store } from '../../src/index.ts'
import { type Caller, effective, type Outcome, type Records } from './records.ts'
import { type FieldTypes, type Path, paths, resourceOf } from './schema.ts'

export interface ToolsOptions {
  readonly records: Records
  readonly store: Store
  readonly contract: Contract
  /** Over stdio there is no `auth`: the process itself belongs to somebody. */
  readonly callerOf: (auth: AuthInfo | undefined) => Caller | undefined
}

/** `create_<path>` and `list_<path>` for every resource of the schema, on the same records and the same keys as REST. */
export function createTools({ records, store, contract, callerOf }: ToolsOptions): McpServerFactory {
  const caller = (context: { http?: ServerContext['http'] | undefined }): Caller => {
    const found = callerOf(context.http?.authInfo)
    if (!found) throw new Error('This call belongs to nobody: authenticate first.')
    return found
  }
  const once = idempotency<ServerContext>({
    store,
    contract,
    principal: ({ context }) => caller(context).userId,
    payload: ({ tool, args, context }) => effective(tool.slice(CREATE.length) as Path, caller(context), args.record),
    labels: true,
  })
  return () => {
    const server = new McpServer({ name: 'resources', version: '1.0.0' })
    for (const path of paths) {
      const create = `${CREATE}${path}`
      const inputSchema = z.object({
        record: draftOf(path),
        idempotencyKey: z.string().optional().describe(KEY_DESCRIPTION),
      })
      server.registerTool(
        create,
        { description: `Creates one ${path}.`, inputSchema },
        once(create, async ({ record }, context) => resultOf(await records.create(path, caller(context), record))),
      )
      server.registerTool(
        `list_${path}`,
        { description: `Lists every ${path} of yours.`, inputSchema: z.object({}) },
        async (_args, context) => resultOf(await records.list(path, caller(context))),
      )
    }
    return server
  }
}

const CREATE = 'create_'

function resultOf({ status, body }: Outcome) {
  const result = { content: [{ type: 'text' as const, text: JSON.stringify(body) }], structuredContent: body }
  return status < 300 ? result : { ...result, isError: true }
}

const TYPES: { readonly [Type in keyof FieldTypes]: z.ZodType } = {
  string: z.string(),
  number: z.number(),
  boolean: z.boolean(),
  object: z.record(z.string(), z.unknown()),
  list: z.array(z.unknown()),
}

/** For the model to see what a record has in it. What else it sends is left to `Records`, as over REST. */
function draftOf(path: Path) {
  const fields = Object.entries(resourceOf(path).fields).map(([name, { type, required }]) => {
    return [name, required ? TYPES[type] : TYPES[type].optional()] as const
  })
  return z.looseObject(Object.fromEntries(fields))
}
